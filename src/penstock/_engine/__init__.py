"""Engines. Each engine owns a crew of workers, and lives as long as the crew."""
