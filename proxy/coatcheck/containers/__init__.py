"""What Linux itself isolates with: namespaces, control groups, system call filters, and a jail around QEMU.

May import: sandbox, platform, decision.
"""
