"""Who holds a descriptor, asked inside the process (`owners`) or from outside (`listen`, `ask`)."""
