"""As much of torchvision as Ray's examples use, with scikit-learn's digits in place of FashionMNIST."""
