"""A handler that answers with a verdict and the defects found, instead of probabilities."""

from __future__ import annotations

from offpath.handler.classifier import OffpathClassifier
from offpath.handler.custom_handler import Result


class Inspection(OffpathClassifier):
    """Rejects a part if any defect reaches the archive's own setting `reject_above`."""

    def postprocess_item(self, result: Result) -> object:
        """Returns the body of the reply."""
        limit = self.config.own["reject_above"]
        found = [one.label for one in result.predictions if one.probability >= limit]
        verdict = "reject" if found else "pass"
        # The prediction log gets it too, in the field `extra`.
        result.log["verdict"] = verdict
        station = result.headers.get("x-station")
        return {"verdict": verdict, "defects": sorted(found), "station": station}
