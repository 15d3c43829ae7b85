"""A progress reporter for testbeds whose progress no test looks at."""


class IgnoredProgress:
    """A progress reporter that does nothing."""

    def on_start(self, started):
        pass

    def on_restart(self, notice):
        pass

    def on_joining(self, joined, workers):
        pass

    def on_record(self, record):
        pass
