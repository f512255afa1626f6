"""From messages or prompts to what each choice says, with no JSON shape; never HTTP, or the words of any API."""
