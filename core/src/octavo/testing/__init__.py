"""What plugin authors test with: scripted and tiny models, drafters and processors, and a naive engine to compare with.

Nothing of Octavo imports this package; a pytest plugin (`octavo.testing.pytest_plugin`) offers its parts as fixtures.
"""
