"""`ckptkit doctor`, on scripts as users write them."""
