"""The drawn world: scenes whose truth is known, their pictures, captions and questions with true answers."""
