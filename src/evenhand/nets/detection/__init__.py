"""Detectors: torchvision's Faster R-CNN, also where torchvision came without its compiled operations."""
