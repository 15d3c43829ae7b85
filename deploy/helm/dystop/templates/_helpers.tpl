{{- define "dystop.name" -}}
{{ .Values.nameOverride | default .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "dystop.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "dystop.labels" -}}
{{ include "dystop.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* The name of worker k, as dystop gives it: w00, or w000 if there are more than a hundred. */}}
{{- define "dystop.workerName" -}}
{{- $width := max 2 (len (toString (sub .workers 1))) -}}
{{- printf "w%0*d" (int $width) (int .k) -}}
{{- end }}

{{/*
The files of the Secret that one party sees: its own, in a folder with the name of its pod. The
volume mount takes only this folder (subPathExpr).
*/}}
{{- define "dystop.secretItems" -}}
{{- $files := ternary (list (printf "%s.token" .party)) (list (printf "%s.crt" .party) (printf "%s.key" .party)) (eq .from "tokens") -}}
{{- range prepend $files "ca.crt" }}
- key: {{ . }}
  path: {{ $.pod }}/{{ . }}
{{- end }}
{{- end }}

{{/* A pod; `role` is coordinator, observer or worker. */}}
{{- define "dystop.pod" -}}
{{- $name := include "dystop.name" .root -}}
{{- $values := .root.Values -}}
{{- $party := get $values .role -}}
{{- $certificates := $values.certificates -}}
{{- $tokens := and (eq $certificates.from "tokens") (ne .role "coordinator") -}}
metadata:
  labels:
    {{- include "dystop.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .role }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ $party.terminationGracePeriodSeconds | default 30 }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
  {{- with $values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ .role }}
      image: "{{ $values.image.repository }}:{{ $values.image.tag | default .root.Chart.AppVersion }}"
      imagePullPolicy: {{ $values.image.pullPolicy }}
      args:
        - {{ .role }}
        {{- if and (eq .role "coordinator") (eq $certificates.from "tokens") }}
        - --enrol
        - 0.0.0.0:7002
        {{- end }}
      env:
        - name: POD_NAME
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        - name: POD_IP
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
        - {name: STAY, value: "1"}
        - {name: XDG_CACHE_HOME, value: /var/lib/dystop/.cache}
        {{- if eq .role "coordinator" }}
        - {name: LISTEN, value: "0.0.0.0:7000"}
        - {name: RUN, value: {{ $values.run | quote }}}
        {{- else }}
        - {name: COORDINATOR, value: "{{ $name }}-coordinator:7000"}
        - {name: ENROL, value: "{{ $name }}-coordinator:7002"}
        {{- end }}
        {{- if eq .role "worker" }}
        - {name: WORKERS, value: {{ $values.workers | quote }}}
        {{- end }}
        - {name: {{ ternary "TOKENS" "CERTIFICATES" $tokens }}, value: /etc/dystop-secret}
      {{- if ne .role "observer" }}
      ports:
        {{- if eq .role "worker" }}
        - {name: models, containerPort: 7001}
        {{- else }}
        - {name: sessions, containerPort: 7000}
        {{- if eq $certificates.from "tokens" }}
        - {name: enrolment, containerPort: 7002}
        {{- end }}
        {{- end }}
      {{- end }}
      # Alive: the loop turns and the port answers. Ready: it also has a session with the coordinator.
      startupProbe:
        exec: {command: [dystop, health, --alive, /run/dystop/health.json]}
        periodSeconds: 5
        timeoutSeconds: 10
        failureThreshold: 60
      livenessProbe:
        exec: {command: [dystop, health, --alive, /run/dystop/health.json]}
        periodSeconds: 20
        timeoutSeconds: 10
        failureThreshold: 3
      readinessProbe:
        exec: {command: [dystop, health, /run/dystop/health.json]}
        periodSeconds: 10
        timeoutSeconds: 10
      {{- with $party.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      volumeMounts:
        - {name: state, mountPath: /var/lib/dystop}
        - {name: experiment, mountPath: /etc/dystop, readOnly: true}
        - name: secret
          mountPath: /etc/dystop-secret
          readOnly: true
          {{- if ne .role "coordinator" }}
          subPathExpr: $(POD_NAME)
          {{- end }}
        - {name: run, mountPath: /run/dystop}
        - {name: tmp, mountPath: /tmp}
  volumes:
    - name: experiment
      configMap: {name: {{ $name }}-experiment}
    - name: secret
      secret:
        secretName: {{ ternary $certificates.tokensSecret $certificates.authoritySecret $tokens }}
        defaultMode: 0440
        {{- if eq .role "observer" }}
        optional: {{ $tokens }}
        items:
          {{- include "dystop.secretItems" (dict "party" "observer" "pod" (printf "%s-observer-0" $name) "from" $certificates.from) | trim | nindent 10 }}
        {{- else if eq .role "worker" }}
        optional: {{ $tokens }}
        items:
          {{- range $k := until (int $values.workers) }}
          {{- $worker := include "dystop.workerName" (dict "k" $k "workers" $values.workers) }}
          {{- include "dystop.secretItems" (dict "party" $worker "pod" (printf "%s-worker-%d" $name $k) "from" $certificates.from) | trim | nindent 10 }}
          {{- end }}
        {{- end }}
    - name: run
      emptyDir: {medium: Memory, sizeLimit: 1Mi}
    - name: tmp
      emptyDir: {}
{{- end }}

{{/* The volume of a party; a release that is removed leaves it. */}}
{{- define "dystop.claim" -}}
- metadata:
    name: state
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .className }}
    storageClassName: {{ . }}
    {{- end }}
    resources:
      requests: {storage: {{ .size }}}
{{- end }}
