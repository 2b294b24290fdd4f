"""Pictures from noise: schedules, samplers, guidance, noise, and the loop that steps many pictures in one batch."""
