{{- define "offpath.name" -}}
{{ if eq .Release.Name .Chart.Name }}{{ .Release.Name }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "offpath.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "offpath.metadata" -}}
name: {{ .name | default (include "offpath.name" .) }}{{ .suffix }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "offpath.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .Release.Service }}
  helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
  {{- with .suffix }}
  app.kubernetes.io/component: {{ trimPrefix "-" . }}
  {{- end }}
{{- end }}

{{- define "offpath.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (ternary (include "offpath.name" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- /* Requests in the server, waiting or in a batch: the sum of their times per second (Little's law). */ -}}
{{- define "offpath.requests" -}}
sum(rate(ts_inference_latency_microseconds{namespace={{ .Release.Namespace | quote }},service={{ include "offpath.name" . | printf "%s-metrics" | quote }}}[{{ .Values.autoscaling.window }}])) / 1e6
{{- end }}

{{- define "offpath.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "offpath.environment" -}}
- {name: OFFPATH_SPOOL_DIR, value: /spool}
{{- with .Values.predictionLog.uri }}
- {name: OFFPATH_PREDICTION_LOG, value: {{ . | quote }}}
{{- end }}
{{- range $name, $value := .Values.env }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{- define "offpath.ping" -}}
httpGet:
  path: /ping
  port: http
  scheme: {{ ternary "HTTPS" "HTTP" (not (empty .Values.tls.secretName)) }}
timeoutSeconds: 2
{{- end }}
