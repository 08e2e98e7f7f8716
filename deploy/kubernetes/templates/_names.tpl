{{- /* A Service's name begins with a letter and has 63 characters and no dot. 54 leave room for "-metrics"
and for KEDA's "keda-hpa-". Helm's limit for a release is 53, so no two releases get the same name. */ -}}
{{- define "offpath.name" -}}
{{- if not (regexMatch "^[a-z]" .Release.Name) }}
{{- fail (printf "the release's name must begin with a letter, as the name of its Service does: %s" .Release.Name) }}
{{- end }}
{{- $name := ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (eq .Release.Name .Chart.Name) -}}
{{ $name | replace "." "-" | trunc 54 | trimSuffix "-" }}
{{- end }}

{{- define "offpath.image" -}}
{{ .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag }}{{ end }}
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
env:
- {name: OFFPATH_SPOOL_DIR, value: /spool}
{{- with .Values.predictionLog.uri }}
- {name: OFFPATH_PREDICTION_LOG, value: {{ . | quote }}}
{{- end }}
{{- range $name, $value := .Values.env }}
{{- if kindIs "string" $value }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- else }}
- {name: {{ $name }}, valueFrom: {{ toJson $value }}}
{{- end }}
{{- end }}
{{- with .Values.envFrom }}
envFrom: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "offpath.probe" -}}
{{- $values := (index . 0).Values -}}
httpGet:
  path: {{ index . 1 }}
  port: http
  scheme: {{ ternary "HTTPS" "HTTP" (not (empty $values.tls.secretName)) }}
timeoutSeconds: 2
{{- end }}
