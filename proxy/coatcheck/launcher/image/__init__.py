"""Guest images: a kernel, an initramfs and a read-only root, made without loop devices, mounts or privileges."""
