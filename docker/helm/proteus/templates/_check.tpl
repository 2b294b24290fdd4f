{{/* What no schema can say. Every text names the value and the fix. */}}
{{- define "proteus.check" -}}
{{- $pools := include "proteus.pools" . | fromJson -}}
{{- if not .Values.deployment -}}
{{- fail "deployment is empty: --set-file deployment=FOLDER/deployment.toml, as make export CHECKPOINT=… OUT=FOLDER wrote it" -}}
{{- end -}}
{{- $file := include "proteus.deployment" . | fromJson -}}
{{- if hasKey $file "Error" -}}
{{- fail (printf "deployment is not TOML: %s" $file.Error) -}}
{{- end -}}
{{- if hasKey $file "encoder_pool" -}}
{{- fail "deployment has [encoder_pool]: remove it, the chart writes it from encoderPool" -}}
{{- end -}}
{{- if hasKey ($file.encoder_cache | default dict) "redis" -}}
{{- fail "deployment has [encoder_cache.redis]: remove it, the chart writes it from encoderCache" -}}
{{- end -}}
{{- if ne ($file.repository | default "") "model_repository" -}}
{{- fail "deployment must say repository = \"model_repository\": export into a folder of its own, make export CHECKPOINT=… OUT=FOLDER" -}}
{{- end -}}
{{- range $key := list "checkpoint" "draw_checkpoint" -}}
{{- if regexMatch "^/|(^|/)\\.\\.(/|$)" (get $file $key | default "") -}}
{{- fail (printf "deployment: %s leads out of the exported folder: name a folder in it" $key) -}}
{{- end -}}
{{- end -}}
{{- if ne 1 (len (compact (list .Values.model.claim .Values.model.hostPath .Values.model.image))) -}}
{{- fail "model: give one of claim, hostPath and image" -}}
{{- end -}}
{{- if and (eq .Values.hardware "gpu") (not (hasKey $file "gpu")) -}}
{{- fail "deployment has no table [gpu]: add it and export again, or set hardware=cpu" -}}
{{- end -}}
{{- include "proteus.checkPools" (dict "pools" $pools "file" $file "hardware" .Values.hardware) -}}
{{- include "proteus.checkCache" .Values.encoderCache -}}
{{- if .Values.gateway.enabled -}}
{{- include "proteus.checkGateway" (dict "gateway" .Values.gateway "file" $file) -}}
{{- end -}}
{{- end -}}

{{- define "proteus.checkGateway" -}}
{{- $table := .file.gateway -}}
{{- if not $table -}}
{{- fail "deployment has no table [gateway]: add it, as deployments/demo.toml has it, or set gateway.enabled=false" -}}
{{- end -}}
{{- if and $table.light (not .gateway.light.release) -}}
{{- fail "gateway.light.release is empty: the release of this namespace that serves the model of [gateway.light]" -}}
{{- end -}}
{{- if regexMatch "^/|(^|/)\\.\\.(/|$)" (($table.light | default dict).deployment | default "") -}}
{{- fail "deployment: [gateway.light] deployment leads out of the exported folder: put the light model's export into it" -}}
{{- end -}}
{{- if not .gateway.tenantsSecret -}}
{{- fail "gateway.tenantsSecret is empty: kubectl create secret generic tenants --from-file=tenants.toml (docs/tenants.md), and give its name" -}}
{{- end -}}
{{- if and ($table.moderation | default dict).url (not .gateway.moderation.cidr) -}}
{{- fail "gateway.moderation.cidr is empty: the network policy lets the gateway reach no [gateway.moderation] url" -}}
{{- end -}}
{{- if gt (int .gateway.autoscaling.min) (int .gateway.autoscaling.max) -}}
{{- fail "gateway.autoscaling.min is over max" -}}
{{- end -}}
{{- range $way := list "ingress" "route" -}}
{{- $chosen := index $.gateway $way -}}
{{- if and $chosen.enabled (not $chosen.host) -}}{{- fail (printf "gateway.%s.host is empty: the name that clients use" $way) -}}{{- end -}}
{{- if and $chosen.enabled (not (concat ($table.http.proxies | default list) $.gateway.proxies)) -}}
{{- fail (printf "gateway.proxies is empty: the network of the pods behind gateway.%s; else one client who guesses keys locks out all" $way) -}}
{{- end -}}
{{- end -}}
{{- if and .gateway.ingress.enabled (not (and .gateway.ingress.className .gateway.ingress.tlsSecret)) -}}
{{- fail "gateway.ingress: give className and tlsSecret; keys never travel in the clear" -}}
{{- end -}}
{{- if and .gateway.route.enabled (not .gateway.route.gateway) -}}
{{- fail "gateway.route.gateway is empty: the name of the Gateway (Gateway API) that ends TLS" -}}
{{- end -}}
{{- end -}}

{{- define "proteus.checkPools" -}}
{{- $pools := .pools -}}
{{- if not $pools -}}{{- fail "no pool is on: set pools.language.enabled=true, or another" -}}{{- end -}}
{{- if and (hasKey $pools "all") (gt (len $pools) 1) -}}
{{- fail "pools.all does everything: set enabled=false for the other pools, or for it" -}}
{{- end -}}
{{- if and (hasKey $pools "encoder") (not (hasKey $pools "language")) -}}
{{- fail "pools.encoder works for pools.language: turn on both or none" -}}
{{- end -}}
{{- if and (hasKey $pools "language") (not .file.checkpoint) -}}
{{- fail "deployment has no checkpoint: set pools.language.enabled=false and pools.encoder.enabled=false" -}}
{{- end -}}
{{- if and (hasKey $pools "draw") (not .file.draw_checkpoint) -}}
{{- fail "deployment has no draw_checkpoint: set pools.draw.enabled=false" -}}
{{- end -}}
{{- if eq .hardware "gpu" -}}
{{- range $name, $pool := $pools -}}
{{- include "proteus.checkDevices" (dict "name" $name "pool" $pool "encodes" (not (hasKey $pools "encoder")) "gpu" ($.file.gpu | default dict)) -}}
{{- end -}}
{{- end -}}
{{- range $name, $pool := $pools -}}
{{- if gt (int $pool.autoscaling.min) (int $pool.autoscaling.max) -}}
{{- fail (printf "pools.%s.autoscaling.min is over max" $name) -}}
{{- end -}}
{{- if and (not (int $pool.rollingUpdate.maxSurge)) (not (int $pool.rollingUpdate.maxUnavailable)) -}}
{{- fail (printf "pools.%s.rollingUpdate: maxSurge or maxUnavailable must be over 0" $name) -}}
{{- end -}}
{{- range $other := $pool.awayFrom -}}
{{- if eq $other $name -}}{{- fail (printf "pools.%s.awayFrom names the pool itself: use spread" $name) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The devices that [gpu] names are those of one pod. */}}
{{- define "proteus.checkDevices" -}}
{{- $needed := 0 -}}
{{- $llm := .gpu.llm | default dict -}}
{{- if or (has .name (list "all" "encoder" "draw")) (and (eq .name "language") .encodes) -}}
{{- range .gpu.devices -}}{{- $needed = max $needed (add1 (int .)) -}}{{- end -}}
{{- end -}}
{{- if has .name (list "all" "language") -}}
{{- $needed = max $needed (add (int ($llm.device | default 0)) (int ($llm.tensor_parallel | default 1))) -}}
{{- end -}}
{{- if has .name (list "all" "draw") -}}
{{- $needed = max $needed (add1 (int ((.gpu.denoiser | default dict).device | default 0))) -}}
{{- end -}}
{{- if lt (int .pool.gpu.count) (int $needed) -}}
{{- fail (printf "pools.%s.gpu.count=%d, and [gpu] of the deployment file names %d devices for it: raise the one or lower the other" .name (int .pool.gpu.count) (int $needed)) -}}
{{- end -}}
{{- end -}}

{{- define "proteus.checkCache" -}}
{{- if eq .mode "external" -}}
{{- if not .external.url -}}{{- fail "encoderCache.external.url is empty: redis://user@host:port/0, without a password" -}}{{- end -}}
{{- if not .external.cidr -}}{{- fail "encoderCache.external.cidr is empty: the network policy lets nobody reach that Redis" -}}{{- end -}}
{{- if not .existingSecret -}}{{- fail "encoderCache.existingSecret is empty: an external Redis has its password already" -}}{{- end -}}
{{- if ne .tls.enabled (hasPrefix "rediss://" .external.url) -}}
{{- fail "encoderCache: tls.enabled goes with a URL that begins with rediss://" -}}
{{- end -}}
{{- end -}}
{{- if and (eq .mode "internal") .tls.enabled (not .tls.existingSecret) -}}
{{- fail "encoderCache.tls.existingSecret is empty: a Secret with tls.crt, tls.key and ca.crt" -}}
{{- end -}}
{{- end -}}
