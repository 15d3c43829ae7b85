from torchvision import __getattr__  # noqa: F401
