"""The implementation of `holdfast.torch`: datasets for torch, and a DataLoader whose workers always end."""
