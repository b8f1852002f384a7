"""What outlives one boot of a sandbox: snapshots, sleep, forks, restores, the warm pool, sizing."""
