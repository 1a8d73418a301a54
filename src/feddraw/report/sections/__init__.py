"""The sections of a report, one file each; `section_order` has their order and says what one is."""
