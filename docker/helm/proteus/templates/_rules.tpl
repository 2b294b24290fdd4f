{{/* Of each pod that asks: what waits, and how full it is. `batch` can wait and buys no GPU. */}}
{{- define "proteus.rules" -}}
{{- $file := include "proteus.deployment" . | fromJson -}}
groups:
  - name: proteus-pools
    interval: 15s
    rules:
      {{- range $name, $_ := include "proteus.pools" . | fromJson }}
      {{- $pods := printf "namespace=%q,pod=~%q" $.Release.Namespace (printf "%s-%s-.+" (include "proteus.name" $) $name) }}
      {{- $reads := and $file.checkpoint (has $name (list "all" "language")) }}
      {{- $draws := and $file.draw_checkpoint (has $name (list "all" "draw")) }}
      {{- $waiting := list }}
      {{- $admitted := list }}
      {{- if eq $name "encoder" }}
      {{- $waiting = list (printf "sum by (namespace, pod) (avg_over_time(nv_inference_pending_request_count{%s,model=~\"image_preprocess|vision_encoder|connector\"}[1m]))" $pods) }}
      {{- end }}
      {{- if $reads }}
      {{- $waiting = concat $waiting (include "proteus.waiting" (dict "pods" $pods "families" (list "proteus_queue_depth" "proteus_llm_waiting")) | fromJsonArray) }}
      {{- $admitted = concat $admitted (include "proteus.admitted" (dict "pods" $pods "family" "proteus_reserved" "capacity" ($file.admission).capacity) | fromJsonArray) }}
      {{- end }}
      {{- if $draws }}
      {{- $waiting = concat $waiting (include "proteus.waiting" (dict "pods" $pods "families" (list "proteus_draw_queue_depth" "proteus_draw_waiting")) | fromJsonArray) }}
      {{- $admitted = concat $admitted (include "proteus.admitted" (dict "pods" $pods "family" "proteus_draw_reserved" "capacity" (($file.draw).admission).capacity) | fromJsonArray) }}
      {{- end }}
      - record: proteus_pool:waiting
        expr: {{ join " + " $waiting | squote }}
        labels: {pool: {{ $name }}}
      {{- if $admitted }}
      - record: proteus_pool:admitted
        expr: {{ printf "max by (namespace, pod) (%s)" (join " or " $admitted) | squote }}
        labels: {pool: {{ $name }}}
      {{- end }}
      {{- end }}
{{- end -}}

{{- define "proteus.waiting" -}}
{{- $terms := list -}}
{{- range .families -}}
{{- $terms = append $terms (printf "sum by (namespace, pod) (avg_over_time(%s{%s,latency_class!=\"batch\"}[1m]))" . $.pods) -}}
{{- end -}}
{{ $terms | toJson }}
{{- end -}}

{{/* The share of each resource that [admission.capacity] limits. */}}
{{- define "proteus.admitted" -}}
{{- $terms := list -}}
{{- range $resource, $limit := .capacity -}}
{{- $terms = append $terms (printf "avg_over_time(%s{%s,resource=%q}[1m]) / %d" $.family $.pods $resource (int64 $limit)) -}}
{{- end -}}
{{ $terms | toJson }}
{{- end -}}
