{{- define "proteus.cacheEgress" -}}
{{- $cache := .Values.encoderCache -}}
- to:
    {{- if eq $cache.mode "internal" }}
    - podSelector:
        matchLabels: {{- include "proteus.selector" (dict "root" . "component" "cache") | nindent 10 }}
    {{- else }}
    - ipBlock: {cidr: {{ $cache.external.cidr | quote }}}
    {{- end }}
  {{- $port := eq $cache.mode "internal" | ternary (include "proteus.ports" . | fromJson).redis $cache.external.port }}
  ports: [{protocol: TCP, port: {{ int $port }}}]
{{- end -}}

{{/* Public addresses alone, and the private networks that [fetch] names; the server looks at each address as well. */}}
{{- define "proteus.fetchEgress" -}}
- to:
    - ipBlock:
        cidr: 0.0.0.0/0
        except: [0.0.0.0/8, 10.0.0.0/8, 100.64.0.0/10, 127.0.0.0/8, 169.254.0.0/16, 172.16.0.0/12, 192.168.0.0/16, 224.0.0.0/3]
    - ipBlock:
        cidr: "2000::/3"         # what is public in IPv6
    {{- range .private_networks }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
  ports:
    {{- range .ports }}
    - {protocol: TCP, port: {{ int . }}}
    {{- end }}
{{- end -}}
