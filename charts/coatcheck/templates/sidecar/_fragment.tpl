{{- /*
What the webhook adds to a pod. Every field that the API server would fill in is written out: the webhook compares
what stands in a pod with this, word for word.
*/ -}}
{{- define "coatcheck.fragment" -}}
{{- $s := .Values.sidecar -}}
initContainers:
- name: coatcheck-redirect
  image: {{ include "coatcheck.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [coatcheck]
  args: [redirect, apply, --inside, --proxy-uid, {{ $s.proxyUid | int | quote }}, --port, {{ $s.transparentPort | int | quote }}, --dns-port, {{ $s.dnsPort | int | quote }}]
  # The only container of the pod with a capability, and it ends before any other begins.
  securityContext:
    runAsUser: 0
    runAsGroup: 0
    runAsNonRoot: false
    privileged: false
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: {drop: [ALL], add: [NET_ADMIN]}
    seccompProfile: {type: RuntimeDefault}
  resources: {{- toYaml $s.redirectResources | nindent 4 }}
  terminationMessagePath: /dev/termination-log
  terminationMessagePolicy: File
{{- if $s.sharedState.url }}
# The fleet's key is a file of the proxy's own user, as a Secret's never is: the pod's fsGroup is its author's. -f: it
# runs again when the pod's sandbox is made anew, on a volume that is still there.
- name: coatcheck-fleet-key
  image: {{ include "coatcheck.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [sh, -c]
  args: ["set -e; umask 077; mkdir -p /var/lib/coatcheck/proxy; cp -f /etc/coatcheck-shared/fleet.key /var/lib/coatcheck/proxy/"]
  securityContext: {{- include "coatcheck.proxySecurity" . | nindent 4 }}
  resources: {{- toYaml $s.redirectResources | nindent 4 }}
  terminationMessagePath: /dev/termination-log
  terminationMessagePolicy: File
  volumeMounts:
  - {name: coatcheck-state, mountPath: /var/lib/coatcheck}
  - {name: coatcheck-shared, mountPath: /etc/coatcheck-shared, readOnly: true}
{{- end }}
- name: coatcheck-proxy
  # A native sidecar: it is ready before the next container begins, and outlives all of them.
  restartPolicy: Always
  image: {{ include "coatcheck.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [coatcheck]
  args: [sidecar, --token-file, /var/run/secrets/coatcheck/token, --pod-uid, $(POD_UID), --address, $(POD_IP), --workload-dir, /run/coatcheck, --policy, {{ $s.policy | quote }}]
  env:
  - name: POD_UID
    valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.uid}}
  - name: POD_IP
    valueFrom: {fieldRef: {apiVersion: v1, fieldPath: status.podIP}}
  {{- include "coatcheck.env" . | nindent 2 }}
  securityContext: {{- include "coatcheck.proxySecurity" . | nindent 4 }}
  startupProbe:
    # Written last, once the session is open.
    exec: {command: [test, -f, /run/coatcheck/environment]}
    periodSeconds: 1
    timeoutSeconds: 5
    successThreshold: 1
    failureThreshold: 120
  resources: {{- toYaml $s.resources | nindent 4 }}
  terminationMessagePath: /dev/termination-log
  terminationMessagePolicy: File
  volumeMounts:
  - {name: coatcheck-state, mountPath: /var/lib/coatcheck}
  - {name: coatcheck-workload, mountPath: /run/coatcheck}
  - {name: coatcheck-tmp, mountPath: /tmp}
  - {name: coatcheck-config, mountPath: /etc/coatcheck, readOnly: true}
  - {name: coatcheck-tokens, mountPath: /var/run/secrets/coatcheck, readOnly: true}
  {{- if $s.sharedState.url }}
  - {name: coatcheck-shared, mountPath: /etc/coatcheck-shared, readOnly: true}
  {{- if $s.sharedState.credentials }}
  - {name: coatcheck-database, mountPath: /etc/coatcheck-database, readOnly: true}
  {{- end }}
  {{- end }}
volumes:
- name: coatcheck-state
  emptyDir: {sizeLimit: {{ $s.stateSize }}}
- name: coatcheck-workload
  emptyDir: {medium: Memory, sizeLimit: 16Mi}
- name: coatcheck-tmp
  emptyDir: {sizeLimit: 64Mi}
{{ include "coatcheck.configurationVolume" (dict "Values" .Values "configMap" "coatcheck-sidecar") }}
{{- if $s.sharedState.url }}
- name: coatcheck-shared
  secret:
    secretName: {{ $s.sharedState.secret | quote }}
    defaultMode: 292
    items:
    - {key: fleet.key, path: fleet.key}
    {{- if not $s.sharedState.credentials }}
    - {key: postgres-password, path: postgres-password}
    {{- end }}
{{- if $s.sharedState.credentials }}
- name: coatcheck-database
  secret:
    secretName: {{ $s.sharedState.credentials | quote }}
    defaultMode: 292
    items:
    - {key: username, path: username}
    - {key: password, path: password}
{{- end }}
{{- end }}
- name: coatcheck-tokens
  projected:
    defaultMode: 292
    sources:
    - serviceAccountToken: {path: token, audience: {{ .Values.platform.audience | quote }}, expirationSeconds: {{ $s.tokenSeconds | int }}}
    - serviceAccountToken: {path: vault-token, audience: {{ .Values.vault.audience | quote }}, expirationSeconds: {{ $s.tokenSeconds | int }}}
    {{- if eq (include "coatcheck.followsCluster" .) "yes" }}
    {{- include "coatcheck.clusterSources" (dict "seconds" ($s.tokenSeconds | int)) | nindent 4 }}
    {{- end }}
{{- end }}

{{- define "coatcheck.proxySecurity" -}}
runAsUser: {{ .Values.sidecar.proxyUid | int }}
runAsGroup: {{ .Values.sidecar.proxyUid | int }}
runAsNonRoot: true
privileged: false
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}
