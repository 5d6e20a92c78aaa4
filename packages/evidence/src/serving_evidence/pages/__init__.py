"""Pages about packets: the sections of one claim, the single page of `report`, the claims of the reviewer site."""
