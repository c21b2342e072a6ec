"""Runs in a Kubernetes cluster. Where to find what:

to launch    plan (spec -> objects)  pod (the pod template)  needs (of a pod)  jobs/ (one file per kind of job)
             preflight (what is checked before)  inventory (the nodes)  job_control (create, watch, delete)
to watch     state (job and pods -> RunState)  view (ps, status)  records (events, metrics)  logs  top  facts/ (for why)
to operate   scale  check (`stoker check kube`, with dns)  environment (`stoker env`)  etcd (the add-on)
the volume   volume/ (pods that read and write it, upload, copy)  place (where a run is)
"""
