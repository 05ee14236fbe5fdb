"""Every kind of pipeline that was found, resumed in a fresh process."""
