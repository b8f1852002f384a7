{{- define "coatcheck.name" -}}
{{- $made := .Release.Name -}}
{{- with .Values.nameOverride }}{{ $made = printf "%s-%s" $.Release.Name . }}{{ end -}}
{{- .Values.fullnameOverride | default $made | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "coatcheck.serviceAccount" -}}
{{ .Values.gateway.serviceAccount.name | default (include "coatcheck.name" .) }}
{{- end }}

{{- /* Where a component's pods run, in the words of a pod's spec. */ -}}
{{- define "coatcheck.placement" -}}
{{- $component := . -}}
{{- range $name := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" }}
{{- with get $component $name }}
{{ dict $name . | toYaml }}
{{- end }}
{{- end }}
{{- end }}

{{- define "coatcheck.labels" -}}
app.kubernetes.io/name: coatcheck
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
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
