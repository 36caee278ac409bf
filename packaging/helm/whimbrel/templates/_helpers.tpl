{{- define "whimbrel.name" -}}
{{- $own := default .Chart.Name .Values.nameOverride -}}
{{- $whole := ternary .Release.Name (printf "%s-%s" .Release.Name $own) (contains $own .Release.Name) -}}
{{- default $whole .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- /* Arguments: the root, and the part: serve, coordinator, member, copy, sync, cutover. */}}
{{- define "whimbrel.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "whimbrel.labels" -}}
{{ include "whimbrel.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* One value as the command line takes it: YAML's whole numbers arrive as fractions. */}}
{{- define "whimbrel.value" -}}
{{- if kindIs "float64" . -}}
{{- if eq (floor .) . }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- else -}}
{{- toString . -}}
{{- end -}}
{{- end }}

{{- /* Options as arguments: true is a flag, false nothing, a list the same option several times. */}}
{{- define "whimbrel.options" -}}
{{- range $name, $value := . }}
{{- if kindIs "bool" $value }}
{{- if $value }}
- {{ printf "--%s" $name | quote }}
{{- end }}
{{- else if kindIs "slice" $value }}
{{- range $value }}
- {{ printf "--%s=%s" $name (include "whimbrel.value" .) | quote }}
{{- end }}
{{- else }}
- {{ printf "--%s=%s" $name (include "whimbrel.value" $value) | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Arguments: variable and the password's {secret, key}. */}}
{{- define "whimbrel.password" -}}
{{- if .of }}
{{- if .of.secret }}
- name: {{ .variable }}
  valueFrom:
    secretKeyRef:
      name: {{ .of.secret }}
      key: {{ .of.key }}
{{- end }}
{{- end }}
{{- end }}

{{- define "whimbrel.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default .Chart.AppVersion $image.tag }}
{{- end -}}
{{- end }}

{{- /* What each container has: root. */}}
{{- define "whimbrel.container" -}}
image: {{ include "whimbrel.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
resources:
  {{- toYaml .Values.resources | nindent 2 }}
volumeMounts:
  - name: state
    mountPath: /var/lib/whimbrel
  {{- if .Values.files.secret }}
  - name: files
    mountPath: /etc/whimbrel/files
    readOnly: true
  {{- end }}
{{- end }}

{{- define "whimbrel.pod" -}}
automountServiceAccountToken: false
# A Service called whimbrel would set WHIMBREL_PORT and others, which the program might take for options.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  # The state folder is closed to everybody else, and has to stay so.
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "whimbrel.files" -}}
{{- if .Values.files.secret }}
- name: files
  secret:
    secretName: {{ .Values.files.secret }}
    defaultMode: 0440
{{- end }}
{{- end }}

{{- define "whimbrel.claim" -}}
accessModes: [ReadWriteOnce]
{{- with .Values.state.storageClassName }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests:
    storage: {{ .Values.state.size }}
{{- end }}

{{- /* Ports of what others give orders to, with probes. */}}
{{- define "whimbrel.steered" -}}
ports:
  - name: resp
    containerPort: 7999
  - name: http
    containerPort: 9400
livenessProbe:
  httpGet:
    path: /healthz
    port: http
  periodSeconds: 10
  failureThreshold: 6
readinessProbe:
  httpGet:
    path: /readyz
    port: http
  periodSeconds: 5
{{- end }}

{{- /* A Job's pods: trying again does not help after a mistake, a refusal, or a job with findings. */}}
{{- define "whimbrel.again" -}}
podFailurePolicy:
  rules:
    - action: FailJob
      onExitCodes:
        containerName: whimbrel
        operator: In
        values: [2, 4, 5, 6]
    - action: Ignore
      onPodConditions:
        - type: DisruptionTarget
          status: "True"
{{- end }}

{{- /* Without a password everybody who reaches the port is let in, and the program refuses that. */}}
{{- define "whimbrel.needed" -}}
{{- if not (dig "secret" "" (.of | default dict)) }}
{{- fail (printf "%s is needed: {secret: NAME, key: KEY}" .what) }}
{{- end }}
{{- end }}
