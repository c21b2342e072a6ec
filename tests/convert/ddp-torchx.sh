# as in a notebook
torchx --log_level=INFO run --wait -s kubernetes -cfg queue=default,namespace=train,service_account=trainer dist.ddp \
  -j 1:2x8 --name resnet/trainer --image team/resnet:3 -h aws_p4d.24xlarge --script /app/main.py --max_retries 3 \
  --env "LR=0.1,WANDB_API_KEY=abc" --mounts type=volume,src=data,dst=/data,readonly --debug True --rdzv_port 29500 \
  --colour blue -- --epochs 3 --note "two words"
