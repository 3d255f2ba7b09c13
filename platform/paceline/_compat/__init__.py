"""Private API of Ray, torch and MLflow, one module per library: the only place that uses it.

Every name in use stands in a module's `PRIVATE`, has the reason beside its use, and a contract test in
`tests/system/compat`. A missing name degrades to something slower or less precise where that is possible; elsewhere it
raises an error that names the supported versions.
"""
