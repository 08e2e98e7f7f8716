"""The service that answers requests on any server: Granian's worker, a Ray replica, Triton.

model_service.py is the way of a request. A server only adds how requests arrive and how replies
leave. Exports hold a copy of this package (deploy/exportable.py), in which `offpath.handler` is the
archive's own. So it imports nothing of ours but the handler's tables of errors and names, and
exchanges only plain values with the handler.
"""
