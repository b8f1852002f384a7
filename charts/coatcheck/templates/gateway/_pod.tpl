{{- /* A gateway's pod, of either kind. */ -}}
{{- define "coatcheck.gatewayPod" -}}
{{- $g := .Values.gateway -}}
metadata:
  labels:
    {{- include "coatcheck.labels" . | nindent 4 }}
    app.kubernetes.io/component: gateway
    {{- with $g.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    {{- with $g.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    # Policies are read again as they change; these are not.
    checksum/settings: {{ include "coatcheck.env" . | sha256sum }}
spec:
  serviceAccountName: {{ include "coatcheck.serviceAccount" . }}
  automountServiceAccountToken: false
  # A Service called coatcheck would put COATCHECK_… variables here, which are no settings.
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ $g.terminationGraceSeconds }}
  {{- include "coatcheck.pullSecrets" . | nindent 2 }}
  {{- include "coatcheck.placement" $g | nindent 2 }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 9990
    runAsGroup: 9990
    fsGroup: 9990
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
  {{- if $g.sharedState.url }}
  initContainers:
  # The daemon's CA is a file of its own user's, as a Secret's never is. -f: it runs again when the pod's sandbox is
  # made anew (a reboot of the node) on a volume that is still there, and the Secret's files are read-only, so the copies are.
  - name: ca
    image: {{ include "coatcheck.image" . | quote }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    command: [sh, -c]
    args:
    - |
      set -e; umask 077; from=/etc/coatcheck-shared/; to=/var/lib/coatcheck/proxy/state/ca/
      mkdir -p "$to"; cp -f "$from"ca.pem "$from"ca-key.pem "$to"; rm -rf "$to"next
      # The other CA that sandboxes are to trust while replicas change theirs one after another.
      if [ -e "$from"next-ca.pem ]; then
        mkdir "$to"next; cp -f "$from"next-ca.pem "$to"next/ca.pem; cp -f "$from"next-ca-key.pem "$to"next/ca-key.pem
      fi
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
    resources: {{- toYaml $g.resources | nindent 6 }}
    volumeMounts:
    - {name: state, mountPath: /var/lib/coatcheck}
    - {name: shared-state, mountPath: /etc/coatcheck-shared, readOnly: true}
  {{- if $g.sharedState.migrator }}
  # Before the first daemon of a release: it refuses older tables, and older daemons go on running on newer ones.
  # No hook, which comes before the ConfigMap with the database's CA, and which GitOps tools run when they like.
  - name: tables
    image: {{ include "coatcheck.image" . | quote }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    command: [coatcheck, fleet, migrate]
    args:
    # Without the url's user, who is the daemons' and may change no table.
    - {{ printf "--url=%s" (regexReplaceAll "//[^@/]*@" $g.sharedState.url "//") | quote }}
    - {{ printf "--name=%s" $g.sharedState.name | quote }}
    - --user-file=/etc/coatcheck-migrator/username
    - --password-file=/etc/coatcheck-migrator/password
    {{- if $g.sharedState.ca }}
    - --ca-file=/etc/coatcheck/trust/postgres-ca.pem
    {{- end }}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
    resources: {{- toYaml $g.resources | nindent 6 }}
    volumeMounts:
    - {name: migrator, mountPath: /etc/coatcheck-migrator, readOnly: true}
    - {name: coatcheck-config, mountPath: /etc/coatcheck, readOnly: true}
  {{- end }}
  {{- end }}
  containers:
  - name: coatcheck
    image: {{ include "coatcheck.image" . | quote }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    command: [coatcheck]
    args: [serve]
    env:
    {{- if $g.sharedState.url }}
    - name: POD_IP
      valueFrom: {fieldRef: {fieldPath: status.podIP}}
    {{- end }}
    {{- include "coatcheck.env" . | nindent 4 }}
    ports:
    - {name: proxy, containerPort: {{ $g.proxyPort }}}
    - {name: control, containerPort: {{ $g.control.port }}}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
    {{- if $g.sharedState.url }}
    # For so long nodes may still lead new connections here; those that are open are drained after it.
    lifecycle: {preStop: {exec: {command: [sleep, "5"]}}}
    {{- end }}
    # The control API answers to names that it knows: a kubelet asks by address.
    startupProbe:
      httpGet: &ready
        path: /readyz
        port: control
        scheme: HTTPS
        httpHeaders: [{name: Host, value: localhost}]
      periodSeconds: 2
      failureThreshold: 60
    readinessProbe:
      httpGet: *ready
      periodSeconds: 5
    livenessProbe:
      httpGet:
        path: /healthz
        port: control
        scheme: HTTPS
        httpHeaders: [{name: Host, value: localhost}]
      periodSeconds: 10
      timeoutSeconds: 5
      failureThreshold: 6
    resources: {{- toYaml $g.resources | nindent 6 }}
    volumeMounts:
    - {name: state, mountPath: /var/lib/coatcheck}
    - {name: run, mountPath: /run/coatcheck}
    - {name: tmp, mountPath: /tmp}
    - {name: coatcheck-config, mountPath: /etc/coatcheck, readOnly: true}
    {{- if $g.sharedState.url }}
    - {name: shared-state, mountPath: /etc/coatcheck-shared, readOnly: true}
    {{- if $g.sharedState.credentials }}
    - {name: database, mountPath: /etc/coatcheck-database, readOnly: true}
    {{- end }}
    {{- end }}
    {{- if .Values.signedPolicies.configMap }}
    - {name: policy-bundle, mountPath: /etc/coatcheck-bundle, readOnly: true}
    {{- end }}
    - {name: control-tls, mountPath: /etc/coatcheck-tls/control, readOnly: true}
    {{- if eq $g.origin "certificate" }}
    - {name: proxy-tls, mountPath: /etc/coatcheck-tls/proxy, readOnly: true}
    {{- end }}
    - {name: vault-token, mountPath: /var/run/secrets/coatcheck, readOnly: true}
  volumes:
  {{- if $g.sharedState.url }}
  - name: state
    emptyDir: {sizeLimit: {{ $g.state.size }}}
  - name: shared-state
    secret: {secretName: {{ $g.sharedState.secret | quote }}, defaultMode: 288}
  {{- if $g.sharedState.migrator }}
  - name: migrator
    secret: {secretName: {{ $g.sharedState.migrator | quote }}, defaultMode: 288}
  {{- end }}
  {{- if $g.sharedState.credentials }}
  - name: database
    secret: {secretName: {{ $g.sharedState.credentials | quote }}, defaultMode: 288}
  {{- end }}
  {{- end }}
  - name: run
    emptyDir: {medium: Memory, sizeLimit: 64Mi}
  - name: tmp
    emptyDir: {sizeLimit: 64Mi}
  {{- include "coatcheck.configurationVolume" (dict "Values" .Values "configMap" (include "coatcheck.name" .)) | nindent 2 }}
  {{- with .Values.signedPolicies.configMap }}
  - name: policy-bundle
    configMap:
      name: {{ . | quote }}
      defaultMode: 292
      items:
      - {key: release.bundle, path: release.bundle}
  {{- end }}
  - name: control-tls
    secret: {secretName: {{ $g.control.secret | quote }}, defaultMode: 288}
  {{- if eq $g.origin "certificate" }}
  - name: proxy-tls
    secret: {secretName: {{ $g.proxyTls.secret | quote }}, defaultMode: 288}
  {{- end }}
  - name: vault-token
    projected:
      defaultMode: 288
      sources:
      - serviceAccountToken:
          path: vault-token
          audience: {{ .Values.vault.audience | quote }}
          expirationSeconds: 3600
      {{- if eq (include "coatcheck.followsCluster" .) "yes" }}
      {{- include "coatcheck.clusterSources" (dict "seconds" 3600) | nindent 6 }}
      {{- end }}
{{- end }}
