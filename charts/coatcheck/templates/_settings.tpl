{{- /* The daemon's environment in either shape: a mapping, so that names are there once. Strings, all of them. */ -}}
{{- define "coatcheck.settings.daemon" -}}
{{- $v := .Values -}}
{{- $config := "/etc/coatcheck" -}}
{{- $set := dict
  "COATCHECK_POLICY" (printf "%s/policies" $config)
  "COATCHECK_STATE_DIR" "/var/lib/coatcheck/proxy/state"
  "COATCHECK_LOG_FORMAT" "json"
  "COATCHECK_VAULT_URL" $v.vault.url
  "COATCHECK_VAULT_LOGIN" $v.vault.login
  "COATCHECK_VAULT_ROLE" $v.vault.role
  "COATCHECK_VAULT_JWT_FILE" "/var/run/secrets/coatcheck/vault-token"
-}}
{{- if $v.signedPolicies.trustRoot -}}
{{- $_ := set $set "COATCHECK_POLICY" (printf "%s/release.bundle" (ternary "/etc/coatcheck-bundle" (printf "%s/policies" $config) (ne $v.signedPolicies.configMap ""))) -}}
{{- $_ := set $set "COATCHECK_POLICY_TRUST_ROOT" (printf "%s/trust/trust-root.pem" $config) -}}
{{- end -}}
{{- with $v.vault.mount }}{{ $_ := set $set "COATCHECK_VAULT_MOUNT" . }}{{ end -}}
{{- with $v.vault.namespace }}{{ $_ := set $set "COATCHECK_VAULT_NAMESPACE" . }}{{ end -}}
{{- if $v.vault.ca }}{{ $_ := set $set "COATCHECK_VAULT_CA_FILE" (printf "%s/trust/vault-ca.pem" $config) }}{{ end -}}
{{- if $v.upstreamCa }}{{ $_ := set $set "COATCHECK_UPSTREAM_CA_FILE" (printf "%s/trust/upstream-ca.pem" $config) }}{{ end -}}
{{- if or (eq $v.shape "sidecar") (eq $v.gateway.origin "token") -}}
{{- if $v.platform.jwks -}}
{{- $_ := set $set "COATCHECK_TOKEN_JWKS_FILE" (printf "%s/trust/jwks.json" $config) -}}
{{- else -}}
{{- $_ := set $set "COATCHECK_TOKEN_JWKS_URL" ($v.platform.jwksUrl | default "https://kubernetes.default.svc/openid/v1/jwks") -}}
{{- end -}}
{{- if eq (include "coatcheck.followsCluster" .) "yes" -}}
{{- $_ := set $set "COATCHECK_TOKEN_JWKS_CA_FILE" "/var/run/secrets/coatcheck/cluster-ca.pem" -}}
{{- $_ := set $set "COATCHECK_TOKEN_JWKS_BEARER_FILE" "/var/run/secrets/coatcheck/cluster-token" -}}
{{- end -}}
{{- $_ := set $set "COATCHECK_TOKEN_ISSUER" $v.platform.issuer -}}
{{- $_ := set $set "COATCHECK_TOKEN_AUDIENCE" $v.platform.audience -}}
{{- end -}}
{{- $shared := (index $v $v.shape).sharedState -}}
{{- if $shared.url -}}
{{- $_ := set $set "COATCHECK_SHARED_STATE" $shared.url -}}
{{- $_ := set $set "COATCHECK_SHARED_STATE_NAME" $shared.name -}}
{{- $_ := set $set "COATCHECK_SHARED_STATE_KEY" (ternary "/etc/coatcheck-shared/fleet.key" "/var/lib/coatcheck/proxy/fleet.key" (eq $v.shape "gateway")) -}}
{{- if $shared.credentials -}}
{{- $_ := set $set "COATCHECK_SHARED_STATE_USER_FILE" "/etc/coatcheck-database/username" -}}
{{- $_ := set $set "COATCHECK_SHARED_STATE_PASSWORD_FILE" "/etc/coatcheck-database/password" -}}
{{- else -}}
{{- $_ := set $set "COATCHECK_SHARED_STATE_PASSWORD_FILE" "/etc/coatcheck-shared/postgres-password" -}}
{{- end -}}
{{- if $shared.ca }}{{ $_ := set $set "COATCHECK_SHARED_STATE_CA_FILE" (printf "%s/trust/postgres-ca.pem" $config) }}{{ end -}}
{{- end -}}
{{- if eq $v.shape "gateway" -}}
{{- $_ := set $set "COATCHECK_RUNTIME_DIR" "/run/coatcheck/proxy" -}}
{{- $_ := set $set "COATCHECK_PROXY_HOST" "0.0.0.0" -}}
{{- $_ := set $set "COATCHECK_PROXY_PORT" (toString $v.gateway.proxyPort) -}}
{{- $_ := set $set "COATCHECK_CONTROL_HOST" "0.0.0.0" -}}
{{- $_ := set $set "COATCHECK_CONTROL_PORT" (toString $v.gateway.control.port) -}}
{{- $_ := set $set "COATCHECK_CONTROL_GRANTS" (printf "%s/control/grants.toml" $config) -}}
{{- $_ := set $set "COATCHECK_CONTROL_TLS_CERTIFICATE" "/etc/coatcheck-tls/control" -}}
{{- $name := include "coatcheck.name" . -}}
{{- $names := list (printf "%s-0.%s.svc" $name .Release.Namespace) -}}
{{- /* The kubelet puts the address in: Prometheus asks each replica by it. */ -}}
{{- if $shared.url }}{{ $names = list (printf "%s.%s.svc" $name $.Release.Namespace) "$(POD_IP)" }}{{ end -}}
{{- $_ := set $set "COATCHECK_CONTROL_NAMES" ($names | toJson) -}}
{{- if $v.gateway.control.clientCa }}{{ $_ := set $set "COATCHECK_CONTROL_CLIENT_CA" (printf "%s/trust/callers-ca.pem" $config) }}{{ end -}}
{{- if eq $v.gateway.origin "certificate" -}}
{{- $_ := set $set "COATCHECK_PROXY_TLS_CERTIFICATE" "/etc/coatcheck-tls/proxy" -}}
{{- $_ := set $set "COATCHECK_PROXY_CLIENT_CA" (printf "%s/trust/sandboxes-ca.pem" $config) -}}
{{- end -}}
{{- $_ := set $set "COATCHECK_MAX_SANDBOXES" "0" -}}
{{- else -}}
{{- $_ := set $set "COATCHECK_RUNTIME_DIR" "/var/lib/coatcheck/proxy/run" -}}
{{- $_ := set $set "COATCHECK_TRANSPARENT_PORT" (toString $v.sidecar.transparentPort) -}}
{{- $_ := set $set "COATCHECK_TRANSPARENT_HOSTS" "[\"127.0.0.1\"]" -}}
{{- $_ := set $set "COATCHECK_TRANSPARENT_TRUST_ADDRESSES" "true" -}}
{{- $_ := set $set "COATCHECK_DNS_PORT" (toString $v.sidecar.dnsPort) -}}
{{- $_ := set $set "COATCHECK_SESSION_MAX_AGE" (printf "%d" (int $v.sidecar.sessionMaxAge)) -}}
{{- $_ := set $set "COATCHECK_MAX_SANDBOXES" "0" -}}
{{- end -}}
{{ toYaml $set }}
{{- end }}

{{- /* The same and `settings`, as a container's env list. Numbers that Helm reads as floats are written whole. */ -}}
{{- define "coatcheck.env" -}}
{{- $set := include "coatcheck.settings.daemon" . | fromYaml -}}
{{- range $name, $value := .Values.settings -}}
{{- $text := $value -}}
{{- if or (kindIs "slice" $value) (kindIs "map" $value) }}{{ $text = toJson $value }}
{{- else if and (kindIs "float64" $value) (eq (floor $value) $value) }}{{ $text = printf "%.0f" $value }}
{{- else }}{{ $text = toString $value }}{{ end -}}
{{- $_ := set $set (printf "COATCHECK_%s" (upper $name)) $text -}}
{{- end -}}
{{- range $name := keys $set | sortAlpha }}
- name: {{ $name }}
  value: {{ get $set $name | quote }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* "yes": the keys that sign pods' tokens are this cluster's own, which it gives to service accounts. */ -}}
{{- define "coatcheck.followsCluster" -}}
{{- $tokens := or (eq .Values.shape "sidecar") (eq .Values.gateway.origin "token") -}}
{{- if and $tokens (not .Values.platform.jwks) (not .Values.platform.jwksUrl) }}yes{{ end -}}
{{- end }}

{{- /* What the proxy asks the cluster with. The token has no audience but the API server, and no right there. */ -}}
{{- define "coatcheck.clusterSources" -}}
- serviceAccountToken: {path: cluster-token, expirationSeconds: {{ .seconds }}}
- configMap:
    name: kube-root-ca.crt
    items:
    - {key: ca.crt, path: cluster-ca.pem}
{{- end }}

{{- /* What a daemon reads and anybody may know, as a ConfigMap's data. Keys are flat: a volume's items name paths. */ -}}
{{- define "coatcheck.configuration" -}}
{{- range $name, $policy := .Values.policies }}
policy-{{ $name }}: {{ $policy | quote }}
{{- end }}
{{- with .Values.signedPolicies.bundle }}
release.bundle: {{ . | quote }}
{{- end }}
{{- with .Values.signedPolicies.trustRoot }}
trust-root.pem: {{ . | quote }}
{{- end }}
{{- with .Values.platform.jwks }}
jwks.json: {{ . | quote }}
{{- end }}
{{- with .Values.vault.ca }}
vault-ca.pem: {{ . | quote }}
{{- end }}
{{- with .Values.upstreamCa }}
upstream-ca.pem: {{ . | quote }}
{{- end }}
{{- $shared := (index .Values .Values.shape).sharedState }}
{{- if and $shared.url $shared.ca }}
postgres-ca.pem: {{ $shared.ca | quote }}
{{- end }}
{{- if eq .Values.shape "gateway" }}
grants.toml: {{ .Values.gateway.control.grants | quote }}
{{- with .Values.gateway.control.clientCa }}
callers-ca.pem: {{ . | quote }}
{{- end }}
{{- with .Values.gateway.proxyTls.clientCa }}
sandboxes-ca.pem: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Its volume: mode and items as the API server would write them down. */ -}}
{{- define "coatcheck.configurationVolume" -}}
{{- $data := include "coatcheck.configuration" . | fromYaml -}}
- name: coatcheck-config
  configMap:
    name: {{ .configMap }}
    defaultMode: 292
    items:
    {{- range $key := keys $data | sortAlpha }}
    - key: {{ $key }}
      path: {{ if hasPrefix "policy-" $key }}policies/{{ trimPrefix "policy-" $key }}{{ else if eq $key "release.bundle" }}policies/{{ $key }}{{ else if eq $key "grants.toml" }}control/{{ $key }}{{ else }}trust/{{ $key }}{{ end }}
    {{- end }}
{{- end }}
