"""What stands behind `holdfast.torch`; the only other place that imports torch."""
