"""The same facts for people and for machines."""
