-- Athena: the table of a prediction log. Partitions are computed from the key, nothing has to be crawled.
-- Replace LOCATION with your prefix. Athena decompresses by the ending of an object's name, .gz or .zst.
CREATE EXTERNAL TABLE predictions (
  event_id string, inference_time string, model string, version string, user_id string,
  payload_bytes bigint, payload_hash string,
  predictions array<struct<label:string, probability:double>>,
  status int, error string, stage_ms map<string,double>, batch_size int)
PARTITIONED BY (dt string, hour string)
ROW FORMAT SERDE 'org.openx.data.jsonserde.JsonSerDe'
LOCATION 's3://bucket/predictions/'
TBLPROPERTIES (
  'projection.enabled' = 'true',
  'projection.dt.type' = 'date', 'projection.dt.format' = 'yyyy-MM-dd',
  'projection.dt.range' = '2026-01-01,NOW',
  'projection.hour.type' = 'integer', 'projection.hour.range' = '0,23',
  'projection.hour.digits' = '2');
