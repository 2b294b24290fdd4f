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
      {{- $waiting = list (printf "avg_over_time(nv_inference_pending_request_count{%s,model=~\"image_preprocess|vision_encoder|connector\"}[1m])" $pods) }}
      {{- end }}
      {{- if $reads }}
      {{- $waiting = concat $waiting (include "proteus.waiting" (dict "pods" $pods "families" (list "proteus_queue_depth" "proteus_llm_waiting")) | fromJsonArray) }}
      {{- $admitted = concat $admitted (include "proteus.admitted" (dict "pods" $pods "family" "proteus_reserved" "idle" "proteus_llm_waiting" "capacity" ($file.admission).capacity) | fromJsonArray) }}
      {{- end }}
      {{- if $draws }}
      {{- $waiting = concat $waiting (include "proteus.waiting" (dict "pods" $pods "families" (list "proteus_draw_queue_depth" "proteus_draw_waiting")) | fromJsonArray) }}
      {{- $admitted = concat $admitted (include "proteus.admitted" (dict "pods" $pods "family" "proteus_draw_reserved" "idle" "proteus_draw_waiting" "capacity" (($file.draw).admission).capacity) | fromJsonArray) }}
      {{- end }}
      - record: proteus_pool:waiting
        expr: {{ printf "sum by (namespace, pod) (%s)" (join " or " $waiting) | squote }}
        labels: {pool: {{ $name }}}
      {{- if $admitted }}
      - record: proteus_pool:admitted
        expr: {{ printf "max by (namespace, pod) (%s)" (join " or " $admitted) | squote }}
        labels: {pool: {{ $name }}}
      {{- end }}
      {{- end }}
{{- end -}}

{{/* Terms that `or` puts together: one that is not told yet leaves the others as they are, and the label `of` keeps two
of the same labels apart. The doors tell theirs from the first request on, the engines from the start. */}}
{{- define "proteus.waiting" -}}
{{- $terms := list -}}
{{- range .families -}}
{{- $terms = append $terms (printf "label_replace(avg_over_time(%s{%s,latency_class!=\"batch\"}[1m]), \"of\", %q, \"\", \"\")" . $.pods .) -}}
{{- end -}}
{{ $terms | toJson }}
{{- end -}}

{{/* The share of each resource that [admission.capacity] limits; 0 of a server that was asked nothing yet. */}}
{{- define "proteus.admitted" -}}
{{- $terms := list (printf "0 * avg_over_time(%s{%s}[1m])" .idle .pods) -}}
{{- range $resource, $limit := .capacity -}}
{{- $terms = append $terms (printf "label_replace(avg_over_time(%s{%s,resource=%q}[1m]) / %d, \"of\", %q, \"\", \"\")" $.family $.pods $resource (int64 $limit) $.family) -}}
{{- end -}}
{{ $terms | toJson }}
{{- end -}}
