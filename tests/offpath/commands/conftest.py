from tests.support.prediction_logs import logs, start_worker

__all__ = ["logs", "start_worker"]
