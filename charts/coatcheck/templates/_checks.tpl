{{- /* What must be given, said before anything is made of it. */ -}}
{{- define "coatcheck.checks" -}}
{{- $v := .Values -}}
{{- $s := $v.signedPolicies -}}
{{- $signed := or $s.bundle $s.configMap -}}
{{- if and $v.policies $signed }}{{ fail "policies and signedPolicies are both given: with a trust root nothing without a signature is read. Leave policies away" }}{{ end -}}
{{- if and $s.bundle $s.configMap }}{{ fail "signedPolicies.bundle and signedPolicies.configMap are both given: leave one away" }}{{ end -}}
{{- if ne (empty $signed) (empty $s.trustRoot) }}{{ fail "signedPolicies.trustRoot and a bundle (signedPolicies.bundle or .configMap) belong together: the one says whose signature the other needs" }}{{ end -}}
{{- if and $s.configMap (eq $v.shape "sidecar") }}{{ fail "signedPolicies.configMap is for the gateway: a new pod remembers no version, so that whoever writes its ConfigMap could bring back an old bundle. Give signedPolicies.bundle" }}{{ end -}}
{{- if and (not $v.policies) (not $signed) }}{{ fail "policies is empty: nothing may leave without one. Give policies.default\\.yaml, e.g. --set-file 'policies.default\\.yaml=policies/default.yaml'" }}{{ end -}}
{{- if not $v.vault.url }}{{ fail "vault.url is empty: give the https:// address of Vault or OpenBao" }}{{ end -}}
{{- $own := include "coatcheck.settings.daemon" . | fromYaml -}}
{{- range $name, $_ := $v.settings }}
{{- if hasKey $own (printf "COATCHECK_%s" (upper $name)) }}{{ fail (printf "settings.%s is set by the chart itself: use the value that it has for it" $name) }}{{ end -}}
{{- end -}}
{{- if and $v.platform.jwks $v.platform.jwksUrl }}{{ fail "platform.jwks and platform.jwksUrl are both given: leave one away" }}{{ end -}}
{{- range $v.extraEnv }}
{{- if and (hasKey . "valueFrom") (eq $v.shape "sidecar") }}{{ fail (printf "extraEnv %s has valueFrom, which is for the gateway: the webhook compares a sidecar with what stands here. Give a value" .name) }}{{ end -}}
{{- end -}}
{{- if $v.settings.proxy_trust_addresses }}{{ fail "settings.proxy_trust_addresses is set: in a cluster an address is the next pod's as well, and proves nothing alone. Use gateway.origin" }}{{ end -}}
{{- $shared := (index $v $v.shape).sharedState -}}
{{- if and $shared.url (not (hasPrefix "postgresql://" $shared.url)) }}{{ fail (printf "%s.sharedState.url is that of a Redis: fleets share their state in PostgreSQL. Give postgresql://user@host:5432/database; docs/fleet.md says how to move a fleet" $v.shape) }}{{ end -}}
{{- if and $shared.url $shared.credentials (contains "@" $shared.url) }}{{ fail (printf "%s.sharedState.url names a user, and %s.sharedState.credentials has another: leave it away in the url" $v.shape $v.shape) }}{{ end -}}
{{- if eq $v.shape "gateway" -}}
{{- if and $s.configMap $shared.url }}{{ fail "signedPolicies.configMap cannot be used with gateway.sharedState: a new replica has no volume and remembers no version, so that whoever writes its ConfigMap could bring back an old bundle. Give signedPolicies.bundle" }}{{ end -}}
{{- if and (gt (int $v.gateway.replicas) 1) (not $shared.url) }}{{ fail "gateway.replicas is more than 1, and gateway.sharedState.url is empty: a replica would not know the sessions and revocations of another. Give a PostgreSQL database (docs/fleet.md)" }}{{ end -}}
{{- if and $shared.url (not $shared.secret) }}{{ fail "gateway.sharedState.secret is empty: name a Secret with fleet.key, postgres-password, ca.pem and ca-key.pem, the same for all replicas" }}{{ end -}}
{{- if not $v.gateway.control.secret }}{{ fail "gateway.control.secret is empty: the control API crosses the network; name a Secret with tls.crt and tls.key, such as cert-manager makes" }}{{ end -}}
{{- if not $v.gateway.control.grants }}{{ fail "gateway.control.grants is empty: nobody could open a session. See docs/control-api.md" }}{{ end -}}
{{- if and (not $v.gateway.serviceAccount.create) (not $v.gateway.serviceAccount.name) }}{{ fail "gateway.serviceAccount.create is false and gateway.serviceAccount.name is empty: name the account that there is" }}{{ end -}}
{{- if and (eq $v.gateway.origin "certificate") (or (not $v.gateway.proxyTls.secret) (not $v.gateway.proxyTls.clientCa)) }}{{ fail "gateway.origin is certificate: give gateway.proxyTls.secret and gateway.proxyTls.clientCa" }}{{ end -}}
{{- else -}}
{{- if and $shared.url (not $shared.secret) }}{{ fail "sidecar.sharedState.secret is empty: name a Secret with fleet.key and postgres-password, which each of sidecar.namespaces has" }}{{ end -}}
{{- if not $v.sidecar.namespaces }}{{ fail "sidecar.namespaces is empty: name the namespaces whose pods get a proxy" }}{{ end -}}
{{- if has .Release.Namespace $v.sidecar.namespaces }}{{ fail "sidecar.namespaces names the release's own namespace: the webhook could not start its own pods" }}{{ end -}}
{{- if has "kube-system" $v.sidecar.namespaces }}{{ fail "sidecar.namespaces names kube-system: the cluster could not start its own pods" }}{{ end -}}
{{- if and $v.policies (not (hasKey $v.policies (printf "%s.yaml" $v.sidecar.policy))) }}{{ fail (printf "sidecar.policy is %s, and policies has no %s.yaml" $v.sidecar.policy $v.sidecar.policy) }}{{ end -}}
{{- if eq (int $v.sidecar.proxyUid) (int $v.sidecar.workloadUid) }}{{ fail "sidecar.workloadUid is the proxy's: nothing would tell the workload from the proxy" }}{{ end -}}
{{- if eq (int $v.sidecar.transparentPort) (int $v.sidecar.dnsPort) }}{{ fail "sidecar.transparentPort and sidecar.dnsPort are the same" }}{{ end -}}
{{- if ne (empty $v.admission.ca.certificate) (empty $v.admission.ca.key) }}{{ fail "admission.ca.certificate and admission.ca.key belong together" }}{{ end -}}
{{- if $v.monitoring.serviceMonitor.enabled }}{{ fail "monitoring.serviceMonitor is for the gateway: a sidecar's control API is a Unix socket" }}{{ end -}}
{{- end -}}
{{- end }}
