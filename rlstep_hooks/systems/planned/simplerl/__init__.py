"""SimpleRL-Zoo (hkust-nlp/simpleRL-reason), made of an early verl: its plan, read in the source at cf1c785."""
