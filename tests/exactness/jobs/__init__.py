"""Small trainings of many kinds, as strangers write them: exact, or named before training, or refused with advice."""
