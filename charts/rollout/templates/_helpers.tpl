{{- define "rollout.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "rollout.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Labels by which a Deployment finds its pods: (dict "root" . "part" "operator"). */ -}}
{{- define "rollout.selector" -}}
app.kubernetes.io/name: {{ include "rollout.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end -}}

{{- define "rollout.labels" -}}
{{ include "rollout.selector" . }}
app.kubernetes.io/part-of: rollout
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "rollout.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default .Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}

{{- /* Name of a part's service account: (dict "root" . "part" "operator" "values" .Values.operator). */ -}}
{{- define "rollout.account" -}}
{{- $account := .values.serviceAccount -}}
{{- if $account.name -}}
{{ $account.name }}
{{- else if $account.create -}}
{{ include "rollout.fullname" .root }}-{{ .part }}
{{- else -}}
default
{{- end -}}
{{- end -}}

{{- /* The webhook's configuration belongs to the cluster, so a namespaced operator has none. */ -}}
{{- define "rollout.hasWebhook" -}}
{{- if and .Values.webhook.enabled (not .Values.namespaces) -}}true{{- end -}}
{{- end -}}

{{- define "rollout.rotates" -}}
{{- if and (include "rollout.hasWebhook" .) (eq .Values.webhook.certificates.mode "SelfManaged") -}}true{{- end -}}
{{- end -}}

{{- define "rollout.webhookNames" -}}
{{- $name := printf "%s-webhook.%s.svc" (include "rollout.fullname" .) .Release.Namespace -}}
{{ $name }},{{ $name }}.cluster.local
{{- end -}}

{{- define "rollout.podSecurity" -}}
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- range $name, $number := .Values.identity }}
{{- if $number }}
{{ $name }}: {{ int64 $number }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "rollout.logEnv" -}}
- {name: ROLLOUT_LOG_LEVEL, value: {{ .Values.log.level | upper }}}
- {name: ROLLOUT_LOG_FORMAT, value: {{ .Values.log.format | lower }}}
{{- end -}}

{{- define "rollout.fileMounts" -}}
{{- range .values.files }}
- {name: {{ .name }}, mountPath: {{ .mountPath }}, readOnly: true}
{{- end }}
{{- end -}}

{{- define "rollout.fileVolumes" -}}
{{- range .values.files }}
- name: {{ .name }}
  {{- if .configMap }}
  configMap: {{ toYaml .configMap | nindent 4 }}
  {{- else }}
  secret: {{ toYaml .secret | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "rollout.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* What sandbox pods run where their runtime names no image: the workers', without tag and digest. */ -}}
{{- define "rollout.sandboxImage" -}}
{{- regexReplaceAll "(@.*|:[^:/]*)$" (default "registry.invalid/rollout-worker" .Values.images.worker) "" -}}
{{- end -}}

{{- /* The role that the operator binds coordinators to: a ClusterRole, in namespaced mode a Role of each namespace. */ -}}
{{- define "rollout.coordinatorRole" -}}
{{ include "rollout.fullname" . }}-coordinator
{{- end -}}

{{- /*
Whether the default runtime's kind is there. Helm looks every kind up before it makes the first object, so the very release that brings the kind
cannot make an object of it. A hook could, and would never get the values of an upgrade: what Helm adopts it does not patch.
*/ -}}
{{- define "rollout.runtimeIsKnown" -}}
{{- $kind := ternary "RolloutRuntime" "ClusterRolloutRuntime" (not (empty .Values.namespaces)) -}}
{{- if or (not .Values.crds.enabled) (.Capabilities.APIVersions.Has (printf "rollout.dev/v1alpha1/%s" $kind)) -}}true{{- end -}}
{{- end -}}

{{- /* Rules of one scope of files/rbac.yaml: (dict "root" . "scope" "watched"). */ -}}
{{- define "rollout.rules" -}}
{{- $account := include "rollout.account" (dict "root" .root "part" "operator" "values" .root.Values.operator) -}}
{{- $coordinator := include "rollout.coordinatorRole" .root -}}
{{- $all := .root.Files.Get "files/rbac.yaml" | replace "$(account)" $account | replace "$(coordinator)" $coordinator | fromYaml -}}
{{ toYaml (index $all .scope) }}
{{- end -}}

{{- /* Metadata of an object: (dict "root" . "part" "operator" "name" "..." "namespace" "..."). */ -}}
{{- define "rollout.meta" -}}
name: {{ .name }}
{{- with .namespace }}
namespace: {{ . }}
{{- end }}
labels:
  {{- include "rollout.labels" . | nindent 2 }}
{{- end -}}

{{- /* Where pods of one part go when nothing is said: on different nodes. */ -}}
{{- define "rollout.placement" -}}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- $own := include "rollout.selector" . | fromYaml }}
{{- with .values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  - topologyKey: {{ .topologyKey }}
    maxSkew: {{ default 1 .maxSkew }}
    whenUnsatisfiable: {{ default "ScheduleAnyway" .whenUnsatisfiable }}
    labelSelector:
      {{- toYaml (default (dict "matchLabels" $own) .labelSelector) | nindent 6 }}
  {{- end }}
{{- end }}
{{- if .values.affinity }}
affinity:
  {{- toYaml .values.affinity | nindent 2 }}
{{- else }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "rollout.selector" . | nindent 14 }}
{{- end }}
{{- end -}}

{{- /* A Deployment's pod template but for its container: labels, account, placement, volumes. */ -}}
{{- define "rollout.podMeta" -}}
labels:
  {{- include "rollout.labels" . | nindent 2 }}
  {{- with .values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "rollout.podBase" -}}
serviceAccountName: {{ include "rollout.account" . }}
securityContext:
  {{- include "rollout.podSecurity" .root | nindent 2 }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.hostAliases }}
hostAliases:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{ include "rollout.placement" . | trim }}
{{- end -}}

{{- define "rollout.probes" -}}
startupProbe:
  httpGet: {path: /readyz, port: health}
  periodSeconds: 2
  failureThreshold: 90
readinessProbe:
  httpGet: {path: /readyz, port: health}
  periodSeconds: 5
  failureThreshold: 2
livenessProbe:
  httpGet: {path: /healthz, port: health}
  periodSeconds: 15
  timeoutSeconds: 5
  failureThreshold: 4
{{- end -}}
