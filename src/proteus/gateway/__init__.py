"""HTTP in OpenAI's words for everyone: whose request it is, what it costs, which server answers it; and the page."""
