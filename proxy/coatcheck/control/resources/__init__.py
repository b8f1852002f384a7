"""The control API's operations, one file a resource."""
