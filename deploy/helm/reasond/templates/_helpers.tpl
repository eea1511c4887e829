{{- define "reasond.labels" -}}
app.kubernetes.io/name: reasond
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "reasond.metadata" -}}
metadata:
  name: {{ .Release.Name }}
  labels: {{- include "reasond.labels" . | nindent 4 }}
{{- end }}

{{- define "reasond.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "reasond.container" -}}
image: {{ include "reasond.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
envFrom:
  - secretRef: {name: {{ .Values.secretName }}}
  {{- with .Values.envFrom }}{{ toYaml . | nindent 2 }}{{ end }}
{{- with .Values.env }}
env: {{- toYaml . | nindent 2 }}
{{- end }}
volumeMounts:
  - {name: config, mountPath: /etc/reasond, readOnly: true}
  - {name: tmp, mountPath: /tmp}
  {{- with .Values.volumeMounts }}{{ toYaml . | nindent 2 }}{{ end }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}
