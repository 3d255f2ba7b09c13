"""The one place where Tune, the worker groups and the driver meet: an actor that holds the state of a sweep."""
