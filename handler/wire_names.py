"""Names by which the front door, the servers and the handler talk to each other.

nginx.conf gets the headers as values (serving/front/nginx_config.py).
"""

from __future__ import annotations

# Variables by which the door tells the workers its folder and its key.
FOLDER_VARIABLE = "OFFPATH_FRONT_FOLDER"
KEY_VARIABLE = "OFFPATH_FRONT_KEY"
# Headers that the door sets on every request. In lower case, as Granian gives all names: the
# handler's dictionary of headers is case-sensitive.
PREFIX = "x-offpath-"
KEY_HEADER = "x-offpath-key"
BODY_HEADER = "x-offpath-body"
TYPE_HEADER = "x-offpath-type"
ID_HEADER = "x-offpath-id"
# The client's address, and the limits of its requests: `client-connections` of `queue`.
CLIENT_HEADER = "x-offpath-client"
# When the whole request had arrived at the door, in seconds since 1970.
ARRIVED_HEADER = "x-offpath-arrived"
# Tells the door that a worker refused a request because its queue is full.
FULL_HEADER = "x-offpath-full"
# Marks the requests of `offpath serve` that warm a server up. The key is new at each start: a
# client that knew it could keep its requests out of the prediction log.
WARM_UP_VARIABLE = "OFFPATH_WARM_UP_KEY"
WARM_UP_HEADER = "x-offpath-warm-up"
# The id of a request, and `event_id` of its record.
REQUEST_ID_HEADER = "x-request-id"
# TorchServe's word to a handler (explain in ts/torch_handler/base_handler.py).
EXPLAIN_HEADER = "explain"
