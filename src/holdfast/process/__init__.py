"""Looks at processes and protects them: doctor, trace, guard, watch. Standard library only."""
