{{- define "reasond.labels" -}}
app.kubernetes.io/name: reasond
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "reasond.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "reasond.container" -}}
image: {{ include "reasond.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
envFrom: [{secretRef: {name: {{ .Values.secretName }}}}]
volumeMounts: [{name: config, mountPath: /etc/reasond, readOnly: true}, {name: tmp, mountPath: /tmp}]
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}
