{{- define "coatcheck.name" -}}
{{- printf "%s" .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "coatcheck.labels" -}}
app.kubernetes.io/name: coatcheck
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "coatcheck.selector" -}}
app.kubernetes.io/name: coatcheck
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "coatcheck.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "coatcheck.pullSecrets" -}}
{{- with .Values.image.pullSecrets -}}
imagePullSecrets:
{{- range . }}
- name: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- define "coatcheck.serverName" -}}
{{ include "coatcheck.name" . }}-admission.{{ .Release.Namespace }}.svc
{{- end }}
