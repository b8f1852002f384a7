"""Guest images: a kernel, an initramfs and a read-only root, made without mounts or privileges.

May import: platform.
"""
