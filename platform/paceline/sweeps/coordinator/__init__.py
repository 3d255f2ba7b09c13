"""The sweep's coordinator: the actor that Tune, the worker groups and the driver talk to."""
