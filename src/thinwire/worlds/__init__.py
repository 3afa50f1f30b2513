"""Who performs the operations: processes (`distributed`), one process (`simulated`), a clock (`modelled`)."""
