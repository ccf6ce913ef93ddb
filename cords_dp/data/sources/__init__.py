"""Sources of your own records: arrays, folders of images, texts, tables, Hugging Face sets."""
